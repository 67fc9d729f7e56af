// Products of activations with one panel of weights, by AMX tiles where the compiler may use them, else by AVX-512.
#pragma once
#ifdef __AMX_BF16__
#include "tiles_amx.h"
#else
#include "tiles_avx512.h"
#endif
