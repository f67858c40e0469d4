"""Attention as one program: scores, softmax and context of a block of rows stay in the caches.

In: shapes of query, key, value and mask. Out: the program (`attention`), the same in short numbers
(`attention_short`, for the matrix unit `attention_amx`), and the sketches of both.
"""
