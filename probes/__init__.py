"""Ways to look inside an open-weight vision-language model while it answers."""
