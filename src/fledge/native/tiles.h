// Products of activations with one panel of weights, by AMX tiles where the compiler may use them, else by vectors.
#pragma once
#ifdef __AMX_BF16__
#include "tiles_amx.h"
#else
#include "tiles_vectors.h"
#endif
