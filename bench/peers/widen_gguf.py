"""A quantized GGUF file with its matrices in bfloat16, for llama.cpp: python widen_gguf.py IN.gguf OUT.gguf

The values are those that transformers loads from the quantized file, rounded to bfloat16; vectors are in float32.
"""

from __future__ import annotations

import sys

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, dequantize
from gguf.quants import quantize


def main() -> None:
    """Write the file."""
    read = GGUFReader(sys.argv[1])
    written = GGUFWriter(sys.argv[2], arch=read.fields["general.architecture"].contents())
    for name, field in read.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind, *inner = field.types
        written.add_key_value(name, field.contents(), kind, sub_type=inner[-1] if inner else None)
    written.add_key_value("general.file_type", 32, GGUFValueType.UINT32)  # mostly bfloat16
    for tensor in read.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if values.ndim < 2:
            written.add_tensor(tensor.name, values)
        else:
            half = quantize(values, GGMLQuantizationType.BF16)
            written.add_tensor(tensor.name, half, raw_dtype=GGMLQuantizationType.BF16)
    written.write_header_to_file()
    written.write_kv_data_to_file()
    written.write_tensors_to_file()
    written.close()


if __name__ == "__main__":
    main()
