"""The simulated inference engine: scheduler, KV cache, counters. No IO and no clock."""
