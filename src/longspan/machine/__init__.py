"""This machine and this process: what they are, what they are set to, their terminal and their locks."""
