"""The original file formats of well-known data sets, one family a file. Each opens a directory where the files lie."""
