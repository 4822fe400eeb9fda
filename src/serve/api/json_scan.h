/* json_scan.h: finds where an object or a list of JSON ends, byte by byte, while it comes.
 *
 * What it says is wrong is no JSON, however it goes on; what it says is done has its brackets in pairs and no more:
 * whether it is JSON is then for a parser. */
#ifndef IV_SERVE_API_JSON_SCAN_H
#define IV_SERVE_API_JSON_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { IV_JSON_SCAN_DEPTH_MAX = 1024 };

typedef enum iv_json_scanned { IV_JSON_MORE, IV_JSON_DONE, IV_JSON_WRONG } iv_json_scanned;

/* Zeroed: before the first bracket. */
typedef struct iv_json_scan {
    size_t depth;
    uint64_t objects[IV_JSON_SCAN_DEPTH_MAX / 64]; /* a bit for each open bracket: {, not [ */
    bool in_string, escaped;
} iv_json_scan;

iv_json_scanned iv_json_scan_byte(iv_json_scan *j, char c);
/* Where the value that begins at s ends, 0 if it does not. */
size_t iv_json_scan_end(const char *s, size_t n);

#endif
