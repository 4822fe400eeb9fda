/* chat.c: invar chat. Invariant: the conversation holds complete turns only: if an answer fails, its user message is
 * removed. Answers go to standard output, everything else to standard error. */
#include "answer.h"
#include "commands.h"
#include "input.h"
#include "model.h"
#include "output.h"
#include "sampling.h"
#include "text.h"

#include <jansson.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat {
    const cli_args *args;
    iv_engine *engine;
    cli_sampling sampling;
    cli_form form;
    char *instruction; /* the system message, or NULL */
    json_t *turns;     /* {"role", "content"} objects, users' and the model's */
    cli_style style;
    bool terminal; /* standard input is a terminal */
    bool failed;   /* some message failed */
    bool leave;
} chat;

static int no_memory(iv_error *err) { return cli_fail(err, CLI_FAILED, "out of memory"); }

static int add_turn(chat *c, const char *role, const char *text, size_t bytes, iv_error *err) {
    return json_array_append_new(c->turns, json_pack("{s:s, s:s%}", "role", role, "content", text, bytes))
               ? no_memory(err)
               : CLI_OK;
}

/* The system message and the turns. The caller owns *out. */
static int messages_of(const chat *c, json_t **out, iv_error *err) {
    json_t *all = json_array();
    int bad = all == NULL;
    if (c->instruction)
        bad |= json_array_append_new(all, json_pack("{s:s, s:s}", "role", "system", "content", c->instruction));
    bad |= json_array_extend(all, c->turns);
    if (!bad) return *out = all, CLI_OK;
    json_decref(all);
    return no_memory(err);
}

static int set_instruction(chat *c, const char *text, iv_error *err) {
    char *copy = *text ? strdup(text) : NULL;
    if (*text && !copy) return no_memory(err);
    free(c->instruction);
    c->instruction = copy;
    return CLI_OK;
}

/* ---- commands of a conversation ------------------------------------------------------------------------ */

static int do_help(chat *c, const char *rest, iv_error *err);

static int do_reset(chat *c, const char *rest, iv_error *err) {
    (void)rest, (void)err;
    json_array_clear(c->turns);
    return CLI_OK;
}

static int do_exit(chat *c, const char *rest, iv_error *err) {
    (void)rest, (void)err;
    c->leave = true;
    return CLI_OK;
}

static int do_seed(chat *c, const char *rest, iv_error *err) {
    cli_value value;
    int code = cli_parse_value(cli_flag_find(c->args->syntax, "seed"), rest, &value, err);
    if (code != CLI_OK) return code;
    c->sampling.request.has_seed = true;
    c->sampling.request.seed = value.count;
    return CLI_OK;
}

static int do_temperature(chat *c, const char *rest, iv_error *err) {
    cli_value value;
    int code = cli_parse_value(cli_flag_find(c->args->syntax, "temperature"), rest, &value, err);
    if (code == CLI_OK) c->sampling.request.temperature = value.real < IV_TEMPERATURE_MIN ? 0.0f : value.real;
    return code;
}

/* The file has the format of invar render --input. */
static int do_save(chat *c, const char *rest, iv_error *err) {
    json_t *messages = NULL;
    if (!*rest) return cli_fail(err, CLI_FAILED, "/save: wanted a file name");
    int code = messages_of(c, &messages, err);
    if (code != CLI_OK) return code;
    json_t *whole = json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", 0);
    if (!whole) return no_memory(err);
    char *text = json_dumps(whole, JSON_INDENT(2));
    cli_buffer buffer = {0};
    code = text ? cli_buffer_open(&buffer, err) : no_memory(err);
    if (code == CLI_OK) fputs(text, buffer.file);
    if (code == CLI_OK) code = cli_buffer_write(&buffer, rest, err);
    free(text);
    json_decref(whole);
    return code;
}

static const struct {
    const char *name, *metavar, *help;
    int (*run)(chat *c, const char *rest, iv_error *err);
} chat_commands[] = {
    {"/help", "", "print this list", do_help},
    {"/reset", "", "forget the conversation but keep the settings", do_reset},
    {"/system", " TEXT", "set the system message; without TEXT, remove it", set_instruction},
    {"/seed", " N", "set the seed of later answers", do_seed},
    {"/temperature", " F", "set the temperature; 0 is greedy", do_temperature},
    {"/save", " FILE", "write the conversation as JSON", do_save},
    {"/exit", "", "exit, like Ctrl-D", do_exit},
};
enum { CHAT_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static int do_help(chat *c, const char *rest, iv_error *err) {
    (void)c, (void)rest, (void)err;
    for (size_t i = 0; i < CHAT_COMMANDS; i++) {
        int n = fprintf(stderr, "  %s%s", chat_commands[i].name, chat_commands[i].metavar);
        fprintf(stderr, "%*s%s\n", 20 - n, "", chat_commands[i].help);
    }
    fputs("  //...             a message that begins with a slash\n"
          "  ...\\              a backslash at the end continues the message on the next line\n"
          "  Ctrl-C            stop the answer\n",
          stderr);
    return CLI_OK;
}

static int run_chat_command(chat *c, const char *line, iv_error *err) {
    size_t word = strcspn(line, " ");
    const char *rest = line + word + strspn(line + word, " ");
    char name[CLI_SHOWN_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)(word < 40 ? word : 40), line);
    size_t best = 0, best_distance = SIZE_MAX;
    for (size_t i = 0; i < CHAT_COMMANDS; i++) {
        size_t distance = cli_word_distance(name, chat_commands[i].name);
        if (distance == 0) return chat_commands[i].run(c, rest, err);
        if (distance < best_distance) best = i, best_distance = distance;
    }
    if (cli_is_near(best_distance, name))
        return cli_fail(err, CLI_FAILED, "unknown command '%s': did you mean %s?", name, chat_commands[best].name);
    return cli_fail(err, CLI_FAILED, "unknown command '%s': /help lists them", name);
}

/* ---- answers ------------------------------------------------------------------------------------------- */

static int on_event(void *user, const iv_event *event, iv_error *err) {
    (void)user;
    return event->text_bytes ? cli_out_text(event->text, event->text_bytes, err) : CLI_OK;
}

static int render(const chat *c, iv_text *out, iv_error *err) {
    json_t *messages = NULL;
    char *variables = NULL;
    int code = messages_of(c, &messages, err);
    if (code == CLI_OK)
        code = cli_chat_variables(messages, cli_text(c->args, "chat-template-kwargs", NULL), &variables, err);
    if (code == CLI_OK &&
        iv_render_chat(iv_engine_text_model(c->engine), variables, strlen(variables), NULL, out, err) != IV_OK)
        code = CLI_FAILED;
    free(variables);
    json_decref(messages);
    return code;
}

static int add_answer(chat *c, iv_reasoning after, const cli_answer *a, iv_error *err) {
    json_t *message = NULL;
    int code = cli_form_message(&c->form, after, a->text, a->text_bytes, &message, err);
    if (code != CLI_OK) return code;
    return json_array_append_new(c->turns, message) == 0 ? CLI_OK : no_memory(err);
}

/* Answers the last turn and adds the answer to the conversation. */
static int reply(chat *c, iv_error *err) {
    iv_text prompt = {0};
    cli_answer a = {0};
    iv_reasoning after = IV_REASONING_NONE;
    int code = render(c, &prompt, err);
    if (code == CLI_OK) {
        iv_request *r = &c->sampling.request;
        r->text = prompt.data;
        r->text_bytes = prompt.bytes;
        r->add_special = false;
        cli_form_use(&c->form, r);
        after = iv_reasoning_after(iv_engine_text_model(c->engine), c->form.reasoning, prompt.data, prompt.bytes);
        code = cli_answer_get(c->engine, r, on_event, NULL, &a, err);
    }
    iv_text_free(&prompt);
    if (code == CLI_OK) code = cli_out("\n", 1, err);
    if (code == CLI_OK) code = add_answer(c, after, &a, err);
    if (code == CLI_OK && !cli_has(c->args, "quiet"))
        fprintf(stderr, "%sseed %llu, %zu tokens, %.1f tokens/s%s, digest %s%s\n", c->style.dim,
                (unsigned long long)a.seed, a.id_count, cli_decode_rate(&a), a.signal ? ", stopped" : "", a.digest,
                c->style.plain);
    if (code == CLI_OK && a.signal && a.signal != SIGINT) code = 128 + a.signal;
    cli_answer_free(&a);
    return code;
}

static int user_turn(chat *c, const char *text, size_t bytes, iv_error *err) {
    int code = add_turn(c, "user", text, bytes, err);
    if (code != CLI_OK) return code;
    code = reply(c, err);
    if (code != CLI_OK) json_array_remove(c->turns, json_array_size(c->turns) - 1);
    return code;
}

/* ---- messages ------------------------------------------------------------------------------------------ */

/* A message: lines up to the first without a trailing backslash. The caller frees out->data. */
static cli_line read_message(const chat *c, cli_bytes *out) {
    *out = (cli_bytes){0};
    for (bool more = true; more;) {
        cli_bytes line;
        if (c->terminal) fprintf(stderr, "%s%s%s", c->style.bold, out->data ? ". " : "> ", c->style.plain);
        cli_line came = cli_read_line(stdin, &line);
        if (came == CLI_LINE_END && out->data) return CLI_LINE;
        more = came == CLI_LINE && line.count > 0 && line.data[line.count - 1] == '\\';
        if (more) line.data[line.count - 1] = '\n';
        if (came == CLI_LINE && !out->data) {
            *out = line;
            continue;
        }
        if (came == CLI_LINE && out->count + line.count > CLI_MESSAGE_MAX) came = CLI_LINE_TOO_LONG, free(line.data);
        char *both = came == CLI_LINE ? realloc(out->data, out->count + line.count + 1) : NULL;
        if (!both) {
            if (came == CLI_LINE) came = CLI_LINE_FAILED, free(line.data);
            free(out->data);
            *out = (cli_bytes){0};
            return came;
        }
        memcpy(both + out->count, line.data, line.count + 1);
        *out = (cli_bytes){.data = both, .count = out->count + line.count};
        free(line.data);
    }
    return CLI_LINE;
}

static int take_message(chat *c, const cli_bytes *message, iv_error *err) {
    const char *text = message->data;
    size_t bad;
    if (message->count == 0) return CLI_OK;
    if (!iv_utf8_valid((const uint8_t *)text, message->count, &bad))
        return cli_fail(err, CLI_FAILED, "message: wanted UTF-8, found byte 0x%02x at offset %zu",
                        (unsigned)(unsigned char)text[bad], bad);
    bool command = text[0] == '/' && text[1] != '/';
    if (command && strlen(text) != message->count)
        return cli_fail(err, CLI_FAILED, "command: wanted no NUL, found one at offset %zu", strlen(text));
    if (command) return run_chat_command(c, text, err);
    size_t skip = text[0] == '/';
    return user_turn(c, text + skip, message->count - skip, err);
}

/* An error ends the message, not the conversation; without a terminal it decides the exit code. */
static int converse(chat *c, iv_error *err) {
    while (!c->leave) {
        cli_bytes message;
        cli_line came = read_message(c, &message);
        int code = CLI_OK;
        if (came == CLI_LINE_END) break;
        if (came == CLI_LINE_INTERRUPTED)
            fputc('\n', stderr);
        else if (came == CLI_LINE_FAILED)
            return cli_fail(err, CLI_FAILED, "standard input: cannot be read");
        else if (came == CLI_LINE_TOO_LONG)
            code = cli_fail(err, CLI_FAILED, "message: wanted at most %d bytes, found more", CLI_MESSAGE_MAX);
        else
            code = take_message(c, &message, err);
        free(message.data);
        if (code > 128 || (code != CLI_OK && !err->message[0])) return code;
        if (code == CLI_OK) continue;
        cli_print_error(err);
        c->failed = true;
    }
    if (c->terminal && !c->leave) fputc('\n', stderr);
    if (!c->failed || c->terminal) return CLI_OK;
    return cli_fail(err, CLI_FAILED, "%s", ""); /* already printed */
}

/* Ctrl-C while typing drops the line instead of ending the program: the read must fail with EINTR. */
static void on_interrupt(int number) { (void)number; }

int cli_chat(const cli_args *args, iv_error *err) {
    chat c = {.args = args,
              .style = cli_style_of(STDERR_FILENO),
              .terminal = isatty(STDIN_FILENO) != 0,
              .turns = json_array()};
    char *variables = NULL;
    int code = c.turns ? CLI_OK : no_memory(err);
    /* Reports errors in the flag before a long load. */
    if (code == CLI_OK)
        code = cli_chat_variables(c.turns, cli_text(args, "chat-template-kwargs", NULL), &variables, err);
    if (code == CLI_OK) code = set_instruction(&c, cli_text(args, "system", ""), err);
    if (code == CLI_OK) code = cli_engine_open(args, &c.engine, err);
    if (code == CLI_OK) {
        cli_sampling_init(&c.sampling, c.engine, args);
        c.form = cli_form_of(iv_engine_text_model(c.engine));
        struct sigaction action = {.sa_handler = on_interrupt};
        sigemptyset(&action.sa_mask);
        if (c.terminal) sigaction(SIGINT, &action, NULL);
        if (c.terminal) fprintf(stderr, "%s/help lists the commands%s\n", c.style.dim, c.style.plain);
        code = converse(&c, err);
    }
    iv_engine_close(c.engine);
    json_decref(c.turns);
    free(c.instruction);
    free(variables);
    return code;
}
