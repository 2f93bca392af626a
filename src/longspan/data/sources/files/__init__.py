"""Files as they are on disk: opened, unpacked, and their text decoded."""
