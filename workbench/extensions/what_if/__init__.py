"""What one batch would be: with other masks, and with its text tokenized again."""
