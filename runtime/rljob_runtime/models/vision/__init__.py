"""What vision-language models have beside a decoder and a `tower`: names, positions, what goes between.

Called by `packing`, `decoder`, and whoever reads and writes weights.
"""
