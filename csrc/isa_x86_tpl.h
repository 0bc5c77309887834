/* The frame of an isa_<isa>.c of x86: FC_TARGET names the features that its functions may use, FC_SIMD its primitives,
 * FC_BODY what is built over them. */
#if defined(__x86_64__) || defined(_M_X64)
#define FC_PRAGMA_(text) _Pragma(#text)
#define FC_PRAGMA(text) FC_PRAGMA_(text)
#if defined(__clang__)
FC_PRAGMA(clang attribute push(__attribute__((target(FC_TARGET))), apply_to = function))
#else
FC_PRAGMA(GCC push_options)
FC_PRAGMA(GCC target(FC_TARGET))
#endif

#include FC_SIMD

#include FC_BODY

#if defined(__clang__)
FC_PRAGMA(clang attribute pop)
#else
FC_PRAGMA(GCC pop_options)
#endif
#endif
