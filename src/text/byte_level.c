/* byte_level.c: printable Latin-1 bytes stand for themselves; the other 68 take U+0100, U+0101, ... in order.
 */
#include "text/byte_level.h"

#include <stdbool.h>

/* The bytes that do not stand for themselves: 0..20, 7f..a0, ad (hex). */
static bool is_moved(unsigned byte) { return byte <= 0x20 || (byte >= 0x7f && byte <= 0xa0) || byte == 0xad; }

size_t iv_byte_level_encode(uint8_t byte, char out[2]) {
    unsigned b = byte;
    unsigned cp = b <= 0x20 ? 0x100 + b : b == 0xad ? 0x143 : is_moved(b) ? 0x121 + (b - 0x7f) : b;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    out[0] = (char)(0xc0 | cp >> 6);
    out[1] = (char)(0x80 | (cp & 0x3f));
    return 2;
}

int iv_byte_level_decode(uint32_t cp) {
    if (cp <= 0xff) return is_moved(cp) ? -1 : (int)cp;
    if (cp <= 0x120) return (int)(cp - 0x100);
    if (cp <= 0x142) return (int)(cp - 0x121 + 0x7f);
    return cp == 0x143 ? 0xad : -1;
}
