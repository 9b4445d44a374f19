#define _GNU_SOURCE
#include "train/options.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <ini.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum option_type { TYPE_TEXT, TYPE_INTEGER, TYPE_REAL, TYPE_SWITCH, TYPE_CHOICE };
enum source { FROM_DEFAULT, FROM_PRESET, FROM_ENVIRONMENT, FROM_FILE, FROM_COMMAND_LINE };

static const struct option_info {
    enum option_type type;
    const char *name; /* as a field, with underscores */
    size_t offset;
    const char *initial;
    double low, high;
    const char *values, *aliases;
    int commands;
    const char *help;
} table[] = {
#define OPTION(type, field, initial, low, high, values, aliases, commands, help)                \
    {TYPE_##type, #field, offsetof(struct options, field), initial, low, high, values, aliases, \
     commands,    help},
#include "train/options.def"
#undef OPTION
};
enum { OPTIONS = sizeof table / sizeof *table };

static const struct {
    const char *model;
    const char *layers, *heads, *channels, *context;
} presets[] = {
    {"nano", "4", "4", "128", "64"},
    {"micro", "6", "6", "384", "256"},
    {"gpt2", "12", "12", "768", "1024"},
    {"gpt2-medium", "24", "16", "1024", "1024"},
    {"gpt2-large", "36", "20", "1280", "1024"},
    {"gpt2-xl", "48", "25", "1600", "1024"},
};

/* What is being filled, and how strong the source of each value is. */
struct parse {
    struct options *o;
    enum option_command command;
    enum source source[OPTIONS];
    struct error *e;
};

/* a-b and a_b name the same option. */
static bool same_name(const char *a, const char *b, size_t b_length) {
    size_t i = 0;
    for (; a[i] && i < b_length; i++)
        if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_'))) return false;
    return !a[i] && i == b_length;
}

/* Steps through the words of a|b|c; returns the length of the word at *at, 0 at the end. */
static size_t next_word(const char **at, const char **word) {
    if (**at == '|') (*at)++;
    *word = *at;
    size_t length = strcspn(*at, "|");
    *at += length;
    return length;
}

static bool has_word(const char *words, const char *name) {
    const char *word;
    for (size_t length; (length = next_word(&words, &word));)
        if (same_name(name, word, length)) return true;
    return false;
}

static bool belongs(int i, enum option_command command) {
    return table[i].commands & (command == COMPARE ? COMPARE | TRAIN : command);
}

static int find_option(const char *name, enum option_command command) {
    for (int i = 0; i < OPTIONS; i++)
        if (belongs(i, command) &&
            (same_name(name, table[i].name, strlen(table[i].name)) || has_word(table[i].aliases, name)))
            return i;
    return -1;
}

static size_t edit_distance(const char *a, const char *b, size_t b_length) {
    size_t row[128];
    if (b_length > 127) b_length = 127;
    for (size_t j = 0; j <= b_length; j++) row[j] = j;
    for (size_t i = 0; a[i]; i++) {
        size_t diagonal = row[0];
        row[0] = i + 1;
        for (size_t j = 1; j <= b_length; j++) {
            size_t change = diagonal + (a[i] != b[j - 1]);
            diagonal = row[j];
            row[j] = change;
            if (row[j - 1] + 1 < row[j]) row[j] = row[j - 1] + 1;
            if (diagonal + 1 < row[j]) row[j] = diagonal + 1;
        }
    }
    return row[b_length];
}

void options_nearest(const char *word, const char *words, char *nearest, size_t size) {
    size_t best = (size_t)-1;
    const char *candidate;
    for (size_t length; (length = next_word(&words, &candidate));) {
        size_t distance = edit_distance(word, candidate, length);
        if (distance >= best) continue;
        best = distance;
        snprintf(nearest, size, "%.*s", (int)length, candidate);
    }
}

/* Writes a field's name the way the command line has it. */
static const char *dashed(const char *name, char *text, size_t size) {
    snprintf(text, size, "%s", name);
    for (char *c = text; *c; c++)
        if (*c == '_') *c = '-';
    return text;
}

static int unknown_option(const struct parse *p, const char *name, const char *where) {
    char names[4096] = "", text[64], nearest[128] = "";
    for (int i = 0; i < OPTIONS; i++) {
        if (!belongs(i, p->command)) continue;
        strncat(names, "|", sizeof names - strlen(names) - 1);
        strncat(names, dashed(table[i].name, text, sizeof text), sizeof names - strlen(names) - 1);
        if (*table[i].aliases) strncat(names, "|", sizeof names - strlen(names) - 1);
        strncat(names, table[i].aliases, sizeof names - strlen(names) - 1);
    }
    options_nearest(name, names, nearest, sizeof nearest);
    return error_set(p->e, "option '%s'%s is not known; did you mean '%s'? --help lists all", name, where,
                     nearest);
}

static int bad_value(const struct parse *p, int i, const char *value, const char *expected) {
    char name[64];
    return error_set(p->e, "--%s: found '%s', expected %s", dashed(table[i].name, name, sizeof name), value,
                     expected);
}

static int parse_number(const struct parse *p, int i, const char *value, double *number) {
    char *end, expected[96];
    errno = 0;
    *number = strtod(value, &end);
    bool whole = table[i].type == TYPE_INTEGER;
    snprintf(expected, sizeof expected, "a %s from %.15g to %.15g", whole ? "whole number" : "number",
             table[i].low, table[i].high);
    if (end == value || *end || errno || !isfinite(*number) || (whole && *number != floor(*number)) ||
        *number < table[i].low || *number > table[i].high)
        return bad_value(p, i, value, expected);
    return 0;
}

static int parse_switch(const struct parse *p, int i, const char *value, bool *on) {
    if (has_word("on|true|yes|1", value)) return *on = true, 0;
    if (has_word("off|false|no|0", value)) return *on = false, 0;
    return bad_value(p, i, value, "on or off");
}

static int parse_choice(const struct parse *p, int i, const char *value) {
    const char *words = table[i].values, *word;
    for (size_t length; (length = next_word(&words, &word));)
        if (strlen(value) == length && memcmp(value, word, length) == 0) return 0;
    char nearest[64] = "", expected[256];
    options_nearest(value, table[i].values, nearest, sizeof nearest);
    snprintf(expected, sizeof expected, "one of %s; did you mean '%s'?", table[i].values, nearest);
    return bad_value(p, i, value, expected);
}

/* A copy that lives until the program ends; reachable, so that it is no leak. */
static const char *keep_text(const char *text) {
    static struct kept {
        struct kept *next;
        char text[];
    } * all;
    const size_t bytes = strlen(text) + 1;
    struct kept *copy = memory_alloc(sizeof *copy + bytes);
    copy->next = all;
    all = copy;
    return memcpy(copy->text, text, bytes);
}

/* Sets option i unless a stronger source has. The value is checked even then. */
static int set_option(struct parse *p, int i, const char *value, enum source source) {
    double number = 0;
    bool on = false;
    int status = 0;
    switch (table[i].type) {
    case TYPE_INTEGER:
    case TYPE_REAL:
        status = parse_number(p, i, value, &number);
        break;
    case TYPE_SWITCH:
        status = parse_switch(p, i, value, &on);
        break;
    case TYPE_CHOICE:
        status = parse_choice(p, i, value);
        break;
    case TYPE_TEXT:
        break;
    }
    if (status || source < p->source[i]) return status;
    p->source[i] = source;
    void *field = (char *)p->o + table[i].offset;
    switch (table[i].type) {
    case TYPE_INTEGER:
        *(int64_t *)field = (int64_t)number;
        break;
    case TYPE_REAL:
        *(double *)field = number;
        break;
    case TYPE_SWITCH:
        *(bool *)field = on;
        break;
    case TYPE_TEXT:
    case TYPE_CHOICE:
        *(const char **)field = source == FROM_FILE ? keep_text(value) : value;
        break;
    }
    return 0;
}

static int read_environment(struct parse *p) {
    for (int i = 0; i < OPTIONS; i++) {
        if (!belongs(i, p->command)) continue;
        char name[80];
        snprintf(name, sizeof name, "TANDEM_%s", table[i].name);
        for (char *c = name; *c; c++) *c = (char)toupper((unsigned char)*c);
        const char *value = getenv(name);
        if (value && set_option(p, i, value, FROM_ENVIRONMENT)) {
            struct error inner = *p->e;
            return error_set(p->e, "environment variable %s: %.600s", name, inner.text);
        }
    }
    return 0;
}

/* An option file being read. inih goes on after a mistake; only the first one is told. */
struct option_file {
    struct parse *parse;
    FILE *file;
    int line, bad_line; /* the newest read; the first whose message is in parse->e, or 0 */
};

static char *read_line(char *text, int size, void *context) {
    struct option_file *f = context;
    if (!fgets(text, size, f->file)) return NULL;
    f->line++;
    if (!strchr(text, '\n') && !feof(f->file) && !f->bad_line) {
        error_set(f->parse->e, "the line is longer than %d characters", size - 2);
        f->bad_line = f->line;
    }
    return text;
}

static int take_line(void *context, const char *section, const char *name, const char *value) {
    struct option_file *f = context;
    (void)section;
    if (f->bad_line) return 0;
    int i = find_option(name, f->parse->command);
    int status = i < 0 ? unknown_option(f->parse, name, " in the option file")
                       : set_option(f->parse, i, value, FROM_FILE);
    if (status) f->bad_line = f->line;
    return status == 0;
}

static int read_file(struct parse *p, const char *path) {
    struct option_file f = {.parse = p, .file = fopen(path, "re")};
    if (!f.file) return error_set(p->e, "option file '%s' cannot be read: %s", path, strerror(errno));
    int line = ini_parse_stream(read_line, &f, take_line, &f);
    int failure = ferror(f.file) ? errno : 0;
    fclose(f.file);
    if (failure) return error_set(p->e, "option file '%s' cannot be read: %s", path, strerror(failure));
    if (line == 0) return 0;
    struct error inner = *p->e;
    return error_set(p->e, "option file '%s', line %d: %.500s", path, line,
                     f.bad_line == line ? inner.text : "expected a line `name = value`");
}

/* getopt's table: every name and alias of the command's options, with dashes and with underscores. */
static struct option *long_options(const struct parse *p) {
    struct option *list = memory_alloc_zeroed(sizeof *list * (size_t)(OPTIONS * 16));
    int count = 0;
    list[count++] = (struct option){"help", no_argument, NULL, 'h'};
    for (int i = 0; i < OPTIONS; i++) {
        if (!belongs(i, p->command)) continue;
        char names[512];
        snprintf(names, sizeof names, "%s|%s", table[i].name, table[i].aliases);
        const char *at = names, *word;
        for (size_t length; (length = next_word(&at, &word));)
            for (int form = 0; form < 2; form++) {
                char *name = strndup(word, length);
                for (char *c = name; *c; c++)
                    if (*c == '-' || *c == '_') *c = form ? '_' : '-';
                int argument = table[i].type == TYPE_SWITCH ? optional_argument : required_argument;
                list[count++] = (struct option){name, argument, NULL, 256 + i};
                if (!strpbrk(word, "-_")) break;
            }
    }
    return list;
}

static void free_long_options(struct option *list) {
    for (int i = 1; list[i].name; i++) free((char *)list[i].name);
    free(list);
}

static int read_command_line(struct parse *p, int argc, char **argv, bool *help) {
    struct option *list = long_options(p);
    int status = 0, code;
    opterr = 0;
    optind = 0; /* start anew, also in a process that has parsed before */
    /* _only: one dash does as well as two, and is never taken for a cluster of letters */
    while (!status && (code = getopt_long_only(argc, argv, ":h", list, NULL)) != -1) {
        const char *word = argv[optind - 1];
        if (code == 'h') {
            *help = true;
        } else if (code == ':') {
            status = error_set(p->e, "option '%s' needs a value", word);
        } else if (code == '?' && optopt) {
            status = error_set(p->e, "option '%.*s' takes no value", (int)strcspn(word, "="), word);
        } else if (code == '?') {
            char name[128];
            snprintf(name, sizeof name, "%.*s", (int)strcspn(word + strspn(word, "-"), "="),
                     word + strspn(word, "-"));
            status = unknown_option(p, name, "");
        } else {
            int i = code - 256;
            const char *value = optarg ? optarg : "on";
            /* `--overlap off`: a switch takes the next word if it is a switch's value */
            if (!optarg && optind < argc && has_word("on|off|true|false|yes|no", argv[optind]))
                value = argv[optind++];
            status = set_option(p, i, value, FROM_COMMAND_LINE);
        }
    }
    p->o->words = argv + optind;
    p->o->word_count = argc - optind;
    free_long_options(list);
    return status;
}

static int apply_preset(struct parse *p) {
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        if (strcmp(presets[i].model, p->o->model) != 0) continue;
        const char *const pairs[][2] = {{"layers", presets[i].layers},
                                        {"heads", presets[i].heads},
                                        {"channels", presets[i].channels},
                                        {"context", presets[i].context}};
        for (size_t k = 0; k < sizeof pairs / sizeof *pairs; k++)
            if (set_option(p, find_option(pairs[k][0], TRAIN), pairs[k][1], FROM_PRESET)) return -1;
    }
    return 0;
}

int options_parse(struct options *o, enum option_command command, int argc, char **argv, bool *help,
                  struct error *e) {
    struct parse p = {.o = o, .command = command, .e = e};
    *o = (struct options){0};
    *help = false;
    for (int i = 0; i < OPTIONS; i++)
        CHECK(set_option(&p, i, table[i].initial, FROM_DEFAULT) == 0, "default of %s: %s", table[i].name,
              e->text);
    if (read_command_line(&p, argc, argv, help) || *help) return *help ? 0 : -1;
    if (read_environment(&p)) return -1;
    if (*o->config && read_file(&p, o->config)) return -1;
    return command == TRAIN || command == COMPARE ? apply_preset(&p) : 0;
}

int options_set(struct options *o, const char *name, const char *value, struct error *e) {
    struct parse p = {.o = o, .command = TRAIN, .e = e};
    const int i = find_option(name, TRAIN);
    return i < 0 ? unknown_option(&p, name, "") : set_option(&p, i, keep_text(value), FROM_COMMAND_LINE);
}

void options_print_help(enum option_command command, FILE *out) {
    for (int i = 0; i < OPTIONS; i++) {
        if (!belongs(i, command)) continue;
        char name[64], left[160];
        snprintf(left, sizeof left, "--%s %s", dashed(table[i].name, name, sizeof name), table[i].values);
        fprintf(out, "  %-28s %s", left, strlen(left) > 28 ? "\n                               " : "");
        fprintf(out, "%s", table[i].help);
        if (*table[i].initial && *table[i].initial != '\n') fprintf(out, " [%s]", table[i].initial);
        fprintf(out, "\n");
    }
}

bool options_are_fixed(const char *name) {
    const int i = find_option(name, TRAIN);
    return i >= 0 && table[i].commands & FIXED;
}

void options_visit(const struct options *o, enum option_command command,
                   void (*visit)(void *context, const char *name, const char *value, bool is_text),
                   void *context) {
    for (int i = 0; i < OPTIONS; i++) {
        if (!belongs(i, command)) continue;
        const void *field = (const char *)o + table[i].offset;
        char number[64];
        switch (table[i].type) {
        case TYPE_TEXT:
        case TYPE_CHOICE:
            visit(context, table[i].name, *(const char *const *)field, true);
            continue;
        case TYPE_INTEGER:
            snprintf(number, sizeof number, "%lld", (long long)*(const int64_t *)field);
            break;
        case TYPE_REAL:
            snprintf(number, sizeof number, "%.17g", *(const double *)field);
            break;
        case TYPE_SWITCH:
            snprintf(number, sizeof number, "%s", *(const bool *)field ? "true" : "false");
            break;
        }
        visit(context, table[i].name, number, false);
    }
}
