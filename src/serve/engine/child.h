/* child.h: the engine process: this program, executed again with IV_SERVER_ENGINE_WORD as its first word. */
#ifndef IV_SERVE_ENGINE_CHILD_H
#define IV_SERVE_ENGINE_CHILD_H

/* main calls iv_server_run_engine when its first word is this. It ends the process. */
#define IV_SERVER_ENGINE_WORD "engine-process"
_Noreturn void iv_server_run_engine(void);

#endif
