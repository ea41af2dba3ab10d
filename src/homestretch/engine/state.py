"""What a stream remembers: KV pages shared by reference count, recurrent slots, commit."""
