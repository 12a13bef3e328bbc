"""The policies, one file each: none imports another."""
