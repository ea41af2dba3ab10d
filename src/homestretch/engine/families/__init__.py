"""Model families: one file here per model_type, found by its name, that turns a config into a Model."""
