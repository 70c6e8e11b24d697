"""The documentation: pages in Markdown, data of every measured table, and `docs.make`, which builds the site."""
