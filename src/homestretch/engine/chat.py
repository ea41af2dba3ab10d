"""Messages to a prompt; a stream of text to content, reasoning and tool calls."""
