"""A shop in the manner of WebShop: a catalogue made here or read from the original's files, pages, and its reward."""
