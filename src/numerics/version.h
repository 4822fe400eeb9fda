/* version.h: the version of the law. Any change of bits is a new one (NUMERICS.md, section 12). */
#ifndef IV_NUMERICS_VERSION_H
#define IV_NUMERICS_VERSION_H

enum { IV_NUMERICS_VERSION = 2, IV_TRAINING_VERSION = 1 };

#endif
