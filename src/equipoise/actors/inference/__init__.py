"""Central inference: env workers step, and inference workers act for many of them."""
