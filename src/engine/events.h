/* events.h: the ring of events from which the caller takes them. */
#ifndef IV_ENGINE_EVENTS_H
#define IV_ENGINE_EVENTS_H

#include "engine/state.h"

iv_status iv_events_open(iv_engine *e, iv_error *err);
void iv_events_close(iv_engine *e);

/* Adds the events of an item; there is room. */
void iv_events_add_item(iv_engine *e, const iv_step_item *item);
/* Adds a sequence's last event; message: of IV_FINISH_ERROR. */
void iv_events_add_done(iv_engine *e, iv_sequence *s, iv_finish finish, const char *message, const char *stop);

/* Room for all events of a step that requests at most iv_events_rows rows of logits? */
bool iv_events_have_room(const iv_engine *e);
bool iv_events_have_more(const iv_engine *e); /* and for one event more, if no request is cancelled */
size_t iv_events_rows(const iv_engine *e);

#endif
