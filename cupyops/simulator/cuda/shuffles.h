// Shuffles of values of any size, for the headers that CUDA's libraries have.
#pragma once

// Shuffles a value in pieces of 8 bytes.
template <typename T> CUPYOPS_INTRINSIC T cupyops_shuffled(int operation, unsigned mask, const T& value, int argument, int width) {
    unsigned long long words[(sizeof(T) + 7) / 8] = {};
    __builtin_memcpy(words, &value, sizeof(T));
    for (auto& word : words) word = cupyops_warp(operation, mask, word, argument, width, nullptr);
    T result = value;
    __builtin_memcpy(static_cast<void*>(&result), words, sizeof(T));
    return result;
}
