"""Pages in a browser: the parts that the servers of pages share: the guard of requests, files,
colours, and JSON that every browser reads.
"""
