/* config_members.h: members of config.json that would change the arithmetic of a family and are not implemented. */
#ifndef IV_FORMAT_CONFIG_MEMBERS_H
#define IV_FORMAT_CONFIG_MEMBERS_H

#include "format/json.h"

/* IV_UNSUPPORTED, naming the member, for the first one whose value is neither null nor harmless. o is the whole
 * configuration; reads: members that its family implements, some may be NULL. Rotary settings are checked by
 * iv_config_rope_check. */
iv_status iv_config_members_check(const iv_json_object *o, const char *const *reads, size_t count, iv_error *err);

/* The same for an object of rotary settings. */
iv_status iv_config_rope_check(const iv_json_object *o, const char *read, iv_error *err);

#endif
