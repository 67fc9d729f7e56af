// Block products by the best unit there is.
#pragma once
#ifdef __AMX_BF16__
#include "tiles_amx.h"
#else
#include "tiles_avx512.h"
#endif
