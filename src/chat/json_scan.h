/* json_scan.h: finds the end of an object or a list of JSON, byte by byte. */
#ifndef IV_CHAT_JSON_SCAN_H
#define IV_CHAT_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* WRONG: not JSON, with any continuation. DONE: its brackets match; whether it is JSON is decided by the parser. */
enum { IV_JSON_SCAN_DEPTH_MAX = 1024 };

typedef enum iv_json_scanned { IV_JSON_MORE, IV_JSON_DONE, IV_JSON_WRONG } iv_json_scanned;

/* Zeroed: before the first bracket. */
typedef struct iv_json_scan {
    size_t depth;
    uint64_t objects[IV_JSON_SCAN_DEPTH_MAX / 64]; /* a bit for each open bracket: {, not [ */
    bool in_string, escaped;
} iv_json_scan;

iv_json_scanned iv_json_scan_byte(iv_json_scan *j, char c);
/* Length of the value at s; 0: incomplete or wrong. */
size_t iv_json_scan_end(const char *s, size_t n);

#endif
