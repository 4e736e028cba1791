"""The live page: runs and versions in a browser, from their files alone, pushed as they change."""
