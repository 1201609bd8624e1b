"""Stage modules written in torch: GPT, OPT and Llama out of one set of parts."""
