"""Text: model files, tokenizers and tasks, named as data as envs are."""
