"""The only file that opens a socket: sends a request, stamps every event, parses after the stream has ended."""
