"""The report: runs as one HTML page, with figures in SVG, that asks nothing of any other file."""
