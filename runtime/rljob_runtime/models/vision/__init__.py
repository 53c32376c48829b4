"""What vision-language models have in addition to a decoder and a `tower`: names, positions, picture
features.

`packing`, `decoder` and the code that reads and writes weights call this.
"""
