"""Short numbers (bfloat16, bytes) in words of 32 bits, which a CPU multiplies several at a time.

In: dtypes. Out: how words are made and multiplied (`words`), and the intrinsics of AVX-512 BF16
(`bfloat16`) and AVX-512 VNNI (`int8`). Other kinds use them.
"""
