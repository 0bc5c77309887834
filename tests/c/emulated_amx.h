/* AMX by what its instructions are documented to do, one after the other, for processors that lack it. */
#ifndef EMULATED_AMX_H
#define EMULATED_AMX_H

#include <immintrin.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    int rows, bytes_a_row;
    union {
        int8_t bytes[16][64];
        int32_t sums[16][16];
    };
} emulated_tile;

static _Thread_local emulated_tile tiles[8];

/* Palette 1: bytes of a row of each tile from byte 16 on, rows from byte 48 on. */
static inline void emulated_loadconfig(const void *config)
{
    const uint8_t *bytes = (const uint8_t *)config;
    memset(tiles, 0, sizeof tiles);
    for (int t = 0; t < 8; t++) {
        tiles[t].rows = bytes[48 + t];
        tiles[t].bytes_a_row = bytes[16 + 2 * t] | bytes[17 + 2 * t] << 8;
        if (bytes[0] != 1 || tiles[t].rows > 16 || tiles[t].bytes_a_row > 64) {
            abort();
        }
    }
}

static inline void emulated_release(void) { memset(tiles, 0, sizeof tiles); }
static inline void emulated_zero(int t) { memset(tiles[t].bytes, 0, sizeof tiles[t].bytes); }

static inline void emulated_loadd(int t, const void *from, ptrdiff_t stride)
{
    emulated_zero(t);
    for (int r = 0; r < tiles[t].rows; r++) {
        memcpy(tiles[t].bytes[r], (const uint8_t *)from + r * stride, (size_t)tiles[t].bytes_a_row);
    }
}

static inline void emulated_stored(int t, void *to, ptrdiff_t stride)
{
    for (int r = 0; r < tiles[t].rows; r++) {
        memcpy((uint8_t *)to + r * stride, tiles[t].bytes[r], (size_t)tiles[t].bytes_a_row);
    }
}

/* c[m][n] += sum over k and i < 4 of a[m][4 k + i] * b[k][4 n + i] */
static inline void emulated_dpbssd(int c, int a, int b)
{
    if (tiles[c].rows != tiles[a].rows || tiles[c].bytes_a_row != tiles[b].bytes_a_row || tiles[a].bytes_a_row == 0 ||
        tiles[a].bytes_a_row != 4 * tiles[b].rows) {
        abort(); /* the processor would fault */
    }
    for (int m = 0; m < tiles[c].rows; m++) {
        for (int k = 0; k < tiles[b].rows; k++) {
            for (int n = 0; n < tiles[c].bytes_a_row; n++) {
                tiles[c].sums[m][n / 4] += tiles[a].bytes[m][4 * k + n % 4] * tiles[b].bytes[k][n];
            }
        }
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig emulated_loadconfig
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_loadd
#define _tile_stored emulated_stored
#define _tile_dpbssd emulated_dpbssd

#endif
