"""Features beside the kernel, one folder each: each subscribes to requests, and none of them is needed to serve one."""
