/* version.h: the versions of the law. Any change of bits is a new one: of the forward pass (NUMERICS.md, section 12) or
 * of training (section 15). */
#ifndef IV_NUMERICS_VERSION_H
#define IV_NUMERICS_VERSION_H

enum { IV_NUMERICS_VERSION = 3, IV_TRAINING_VERSION = 3 };

#endif
