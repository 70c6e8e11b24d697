"""Silent bugs of other frameworks, planted into this process for as long as a block lasts, so that one sees them named."""
