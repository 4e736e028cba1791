"""Labelling: a page in a browser on which people compare two clips or two texts of a store."""
