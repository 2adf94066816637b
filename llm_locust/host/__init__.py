"""Facts of the machine and the container that this process runs in, as the kernel reports them."""
