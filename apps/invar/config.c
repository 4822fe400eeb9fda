/* config.c: configuration files, by libyaml. Values are checked by the rows of the command line's table, so a file and
 * a command line cannot disagree. */
#include "config.h"
#include "base/buf.h"
#include "base/file.h"
#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { FILE_BYTES_MAX = 1 << 20 };

struct cli_config {
    char **texts;
    size_t count;
};

void cli_config_free(cli_config *c) {
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) free(c->texts[i]);
    free(c->texts);
    free(c);
}

/* A file being read. */
typedef struct reading {
    const char *path;
    yaml_document_t document;
    cli_args *args;
    size_t given; /* values of the command line; those of the file follow */
    cli_config *config;
    bool has_operand;
} reading;

static int wrong(const reading *r, const yaml_node_t *at, iv_error *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
static int wrong(const reading *r, const yaml_node_t *at, iv_error *err, const char *fmt, ...) {
    char what[600];
    va_list list;
    va_start(list, fmt);
    vsnprintf(what, sizeof what, fmt, list);
    va_end(list);
    return cli_fail(err, CLI_USAGE, "%.300s:%zu: %s", r->path, at->start_mark.line + 1, what);
}

/* ---- nodes -------------------------------------------------------------------------------------------- */

static const char *text_of(const yaml_node_t *n) { return (const char *)n->data.scalar.value; }
static bool is_plain(const yaml_node_t *n) { return n->data.scalar.style == YAML_PLAIN_SCALAR_STYLE; }

static bool is_one_of(const yaml_node_t *n, const char *words) {
    size_t length = n->data.scalar.length;
    for (const char *at = words; is_plain(n) && *at; at += strspn(at, " ")) {
        size_t word = strcspn(at, " ");
        if (word == length && memcmp(at, text_of(n), word) == 0) return true;
        at += word;
    }
    return false;
}
static bool is_null(const yaml_node_t *n) {
    return is_plain(n) && (n->data.scalar.length == 0 || is_one_of(n, "~ null Null NULL"));
}
static bool is_true(const yaml_node_t *n) { return is_one_of(n, "true True TRUE"); }
static bool is_false(const yaml_node_t *n) { return is_one_of(n, "false False FALSE"); }

static const char *type_of(const yaml_node_t *n) {
    if (n->type == YAML_MAPPING_NODE) return "a mapping";
    if (n->type == YAML_SEQUENCE_NODE) return "a list";
    if (is_null(n)) return "nothing";
    return is_plain(n) ? "a value" : "a quoted text";
}

/* A copy that lives with the configuration. */
static int keep(reading *r, const char *text, const char **out, iv_error *err) {
    char *copy = strdup(text), **more = copy ? realloc(r->config->texts, (r->config->count + 1) * sizeof *more) : NULL;
    if (more) r->config->texts = more;
    if (!more) {
        free(copy);
        return cli_fail(err, CLI_FAILED, "%s: no memory", r->path);
    }
    *out = more[r->config->count++] = copy;
    return CLI_OK;
}

/* ---- values ------------------------------------------------------------------------------------------- */

static bool is_list(const cli_flag *f) { return f->kind == CLI_TEXT && f->metavar && strcmp(f->metavar, "LIST") == 0; }

/* Whether a scalar may be a value of this row; `wanted` says what may, if not. */
static bool has_type(const cli_flag *f, const yaml_node_t *n, const char **wanted) {
    bool number = f->kind == CLI_COUNT || f->kind == CLI_REAL;
    *wanted = number                                          ? "a number, without quotes"
              : f->kind == CLI_SWITCH                         ? "true or false"
              : f->kind == CLI_CHOICE                         ? f->choices
              : is_list(f) || f->most > 1                     ? "a list or a text"
              : f->kind == CLI_MEMORY || f->kind == CLI_BYTES ? "a number of bytes, such as 1048576 or 32M"
                                                              : "a text";
    if (n->type != YAML_SCALAR_NODE || is_null(n)) return false;
    if (f->kind == CLI_SWITCH) return is_true(n) || is_false(n);
    return !is_true(n) && !is_false(n) && (is_plain(n) || !number);
}

static int check_scalar(const reading *r, const cli_flag *f, const yaml_node_t *n, iv_error *err) {
    const char *wanted;
    if (!has_type(f, n, &wanted)) {
        char shown[CLI_SHOWN_BYTES];
        bool plain = n->type == YAML_SCALAR_NODE && is_plain(n) && !is_null(n);
        return wrong(r, n, err, "%s: wanted %s, found %s", f->name, wanted,
                     plain ? cli_shown(text_of(n), shown) : type_of(n));
    }
    if (strlen(text_of(n)) != n->data.scalar.length) return wrong(r, n, err, "%s: a NUL byte", f->name);
    return CLI_OK;
}

/* ["a", "b"] as "a,b". */
static int join(reading *r, const cli_flag *f, const yaml_node_t *n, const char **out, iv_error *err) {
    iv_buf all = {0};
    int code = CLI_OK;
    for (const yaml_node_item_t *i = n->data.sequence.items.start; code == CLI_OK && i < n->data.sequence.items.top;
         i++) {
        const yaml_node_t *item = yaml_document_get_node(&r->document, *i);
        code = check_scalar(r, f, item, err);
        if (code == CLI_OK && strchr(text_of(item), ','))
            code = wrong(r, item, err, "%s: a comma in an item of a list", f->name);
        if (code == CLI_OK && !(iv_buf_puts(&all, all.len ? "," : "") && iv_buf_puts(&all, text_of(item))))
            code = cli_fail(err, CLI_FAILED, "%s: no memory", r->path);
    }
    if (code == CLI_OK) code = keep(r, all.data ? all.data : "", out, err);
    iv_buf_free(&all);
    return code;
}

static int take_value(reading *r, const cli_flag *f, const yaml_node_t *n, bool overridden, iv_error *err);

/* Of a flag that may be given several times. */
static int take_each(reading *r, const cli_flag *f, const yaml_node_t *n, bool overridden, iv_error *err) {
    int code = CLI_OK;
    for (const yaml_node_item_t *i = n->data.sequence.items.start; code == CLI_OK && i < n->data.sequence.items.top;
         i++) {
        const yaml_node_t *item = yaml_document_get_node(&r->document, *i);
        code = check_scalar(r, f, item, err);
        if (code == CLI_OK) code = take_value(r, f, item, overridden, err);
    }
    return code;
}

/* A value that the command line overrides is checked too. */
static int take_value(reading *r, const cli_flag *f, const yaml_node_t *n, bool overridden, iv_error *err) {
    cli_value value = {.flag = f};
    const char *text = NULL;
    if (f->most > 1 && n->type == YAML_SEQUENCE_NODE) return take_each(r, f, n, overridden, err);
    bool list = is_list(f) && n->type == YAML_SEQUENCE_NODE;
    int code = list ? join(r, f, n, &text, err) : check_scalar(r, f, n, err);
    if (code != CLI_OK || (!list && f->kind == CLI_SWITCH && is_false(n))) return code;
    if (f->kind != CLI_SWITCH) {
        iv_error why;
        if (!list && (code = keep(r, text_of(n), &text, err)) != CLI_OK) return code;
        if (cli_parse_value(f, text, &value, &why) != CLI_OK) return wrong(r, n, err, "%.500s", why.message + 2);
    }
    return overridden ? CLI_OK : cli_add_value(r->args, &value, err);
}

/* ---- keys --------------------------------------------------------------------------------------------- */

static bool is_given(const reading *r, const char *name) {
    for (size_t i = 0; i < r->given; i++)
        if (strcmp(r->args->values[i].flag->name, name) == 0) return true;
    return false;
}

/* The command line has this flag, or one that excludes it. */
static bool is_overridden(const reading *r, const cli_flag *f, const char *const (*rivals)[2]) {
    bool given = is_given(r, f->name);
    for (; rivals && (*rivals)[0]; rivals++)
        for (size_t k = 0; k < 2; k++)
            if (strcmp((*rivals)[k], f->name) == 0) given |= is_given(r, (*rivals)[1 - k]);
    return given;
}

/* The operand's name: MODEL is the key `model`. */
static bool is_operand(const cli_syntax *s, const char *key) {
    size_t n = strlen(key);
    if (!s->operand || strlen(s->operand) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (key[i] != (s->operand[i] | 0x20)) return false;
    return true;
}

static int unknown(const reading *r, const yaml_node_t *key, iv_error *err) {
    char shown[CLI_SHOWN_BYTES];
    iv_error why;
    cli_unknown_flag(r->args->syntax, text_of(key), &why);
    const char *hint = strstr(why.message, ": did you mean --");
    cli_shown(text_of(key), shown);
    if (!hint) return wrong(r, key, err, "unknown key '%s'", shown);
    return wrong(r, key, err, "unknown key '%s': did you mean %.60s", shown, hint + strlen(": did you mean --"));
}

/* The same key above this pair, perhaps by another of its names. */
static const yaml_node_t *find_before(reading *r, const yaml_node_t *map, const yaml_node_pair_t *until,
                                      const char *key) {
    const cli_flag *flag = cli_flag_find(r->args->syntax, key);
    for (const yaml_node_pair_t *p = map->data.mapping.pairs.start; p < until; p++) {
        const yaml_node_t *k = yaml_document_get_node(&r->document, p->key);
        if (strcmp(text_of(k), key) == 0 || (flag && cli_flag_find(r->args->syntax, text_of(k)) == flag)) return k;
    }
    return NULL;
}

static int take_operand(reading *r, const yaml_node_t *key, const yaml_node_t *n, iv_error *err) {
    const cli_flag row = {.name = text_of(key), .kind = CLI_FILE, .metavar = r->args->syntax->operand};
    const char *text = NULL;
    int code = check_scalar(r, &row, n, err);
    if (code != CLI_OK || r->has_operand || (code = keep(r, text_of(n), &text, err)) != CLI_OK) return code;
    r->args->operands[r->args->operand_count++] = text;
    return CLI_OK;
}

static int take_pair(reading *r, const yaml_node_t *map, const yaml_node_pair_t *p, const char *const (*rivals)[2],
                     iv_error *err) {
    const yaml_node_t *key = yaml_document_get_node(&r->document, p->key),
                      *value = yaml_document_get_node(&r->document, p->value);
    if (key->type != YAML_SCALAR_NODE) return wrong(r, key, err, "wanted the name of a flag, found %s", type_of(key));
    const cli_flag *f = cli_flag_find(r->args->syntax, text_of(key));
    bool operand = is_operand(r->args->syntax, text_of(key));
    if (!f && !operand) return unknown(r, key, err);
    const yaml_node_t *before = find_before(r, map, p, text_of(key));
    if (before)
        return wrong(r, key, err, "%s: given twice, before in line %zu", text_of(key), before->start_mark.line + 1);
    if (operand) return take_operand(r, key, value, err);
    if (strcmp(f->name, "config") == 0) return wrong(r, key, err, "config: not in a configuration file");
    return take_value(r, f, value, is_overridden(r, f, rivals), err);
}

static int take_document(reading *r, const char *const (*rivals)[2], iv_error *err) {
    const yaml_node_t *root = yaml_document_get_root_node(&r->document);
    if (!root) return CLI_OK; /* an empty file */
    if (root->type == YAML_SCALAR_NODE && is_null(root)) return CLI_OK;
    if (root->type != YAML_MAPPING_NODE)
        return wrong(r, root, err, "wanted lines of KEY: VALUE, found %s", type_of(root));
    for (const yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        int code = take_pair(r, root, p, rivals, err);
        if (code != CLI_OK) return code;
    }
    return CLI_OK;
}

/* ---- files -------------------------------------------------------------------------------------------- */

static int not_yaml(const reading *r, const yaml_parser_t *p, iv_error *err) {
    size_t line = p->problem_mark.line + 1;
    if (p->error == YAML_MEMORY_ERROR) return cli_fail(err, CLI_FAILED, "%s: no memory", r->path);
    if (p->error == YAML_READER_ERROR)
        return cli_fail(err, CLI_USAGE, "%s: not YAML, at byte %zu: %s", r->path, p->problem_offset, p->problem);
    return cli_fail(err, CLI_USAGE, "%s:%zu: not YAML: %s%s%s", r->path, line, p->problem, p->context ? " " : "",
                    p->context ? p->context : "");
}

/* Reads the only document. */
static int read_document(reading *r, yaml_parser_t *parser, const char *const (*rivals)[2], iv_error *err) {
    yaml_document_t more;
    if (!yaml_parser_load(parser, &r->document)) return not_yaml(r, parser, err);
    int code = take_document(r, rivals, err);
    bool any = yaml_document_get_root_node(&r->document) != NULL;
    yaml_document_delete(&r->document);
    if (code != CLI_OK || !any) return code;
    if (!yaml_parser_load(parser, &more)) return not_yaml(r, parser, err);
    const yaml_node_t *root = yaml_document_get_root_node(&more);
    if (root) code = wrong(r, root, err, "a second document: wanted one");
    yaml_document_delete(&more);
    return code;
}

int cli_config_read(cli_args *args, const char *const (*rivals)[2], cli_config **out, iv_error *err) {
    reading r = {.path = cli_text(args, "config", NULL), .args = args, .given = args->value_count};
    yaml_parser_t parser;
    iv_buf text = {0};
    r.has_operand = args->operand_count > 0;
    *out = NULL;
    if (iv_file_read_any(r.path, FILE_BYTES_MAX, &text, err) != IV_OK) return CLI_FAILED;
    r.config = calloc(1, sizeof *r.config);
    if (!r.config || !yaml_parser_initialize(&parser)) {
        cli_config_free(r.config);
        iv_buf_free(&text);
        return cli_fail(err, CLI_FAILED, "%s: no memory", r.path);
    }
    yaml_parser_set_input_string(&parser, (const unsigned char *)(text.data ? text.data : ""), text.len);
    int code = read_document(&r, &parser, rivals, err);
    yaml_parser_delete(&parser);
    if (text.data) explicit_bzero(text.data, text.cap); /* it may hold keys */
    iv_buf_free(&text);
    if (code == CLI_OK)
        *out = r.config;
    else
        cli_config_free(r.config);
    return code;
}
