#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/compress.h"
#include "train/compare.h"

/* Whether the method left alone what all runs of a comparison share (texts are the same where the pointers are). */
static bool keeps_shared(const struct options *m, const struct options *o) {
    return m->data == o->data && m->run_dir == o->run_dir && m->config == o->config && m->seed == o->seed &&
           m->model == o->model && m->dp == o->dp && m->pp == o->pp && m->comm == o->comm &&
           m->all_reduce == o->all_reduce && m->timeout == o->timeout && m->compress == o->compress;
}

static int apply_setting(struct compare_method *m, char *setting, struct error *e) {
    struct error inner;
    char *value = strchr(setting, '=');
    if (!value)
        return error_set(e, "--methods: '%s' has the setting '%s', expected NAME=VALUE", m->word, setting);
    *value++ = 0;
    if (options_set(&m->options, setting, value, &inner))
        return error_set(e, "--methods: '%s': %.500s", m->word, inner.text);
    return 0;
}

/* NAME[:SETTING=VALUE]... */
static int parse_word(struct compare_method *m, struct error *e) {
    char parts[COMPARE_LONGEST_WORD + 1], *rest = parts;
    snprintf(parts, sizeof parts, "%s", m->word);
    const char *name = strsep(&rest, ":");
    if (!compressor_find(name)) {
        char nearest[64] = "";
        options_nearest(name, compressor_names(), nearest, sizeof nearest);
        return error_set(
            e, "--methods: found '%s', expected some of %s, separated by commas; did you mean '%s'?", name,
            compressor_names(), nearest);
    }
    if (options_set(&m->options, "compress", name, e)) return -1;
    const struct options before = m->options;
    while (rest)
        if (apply_setting(m, strsep(&rest, ":"), e)) return -1;
    if (!keeps_shared(&m->options, &before))
        return error_set(
            e,
            "--methods: '%s' sets one of data, run-dir, config, seed, model, compress, dp, pp, comm, "
            "all-reduce and timeout, which are the same for all methods",
            m->word);
    return 0;
}

static int add_method(struct compare_plan *plan, const char *word, struct error *e) {
    struct compare_method *m = &plan->method[plan->methods];
    if (strlen(word) > COMPARE_LONGEST_WORD)
        return error_set(e, "--methods: '%.40s...' is longer than %d characters", word, COMPARE_LONGEST_WORD);
    *m = (struct compare_method){.options = *plan->options};
    strcpy(m->word, word);
    strcpy(m->folder, word);
    for (char *c = m->folder; *c; c++)
        if (!isalnum((unsigned char)*c) && !strchr("=.-", *c)) *c = '_';
    if (parse_word(m, e)) return -1;
    for (int i = 0; i < plan->methods; i++)
        if (strcmp(plan->method[i].folder, m->folder) == 0)
            return error_set(e, "--methods: '%s' is there twice", word);
    if (plan->reference < 0 && strcmp(word, "none") == 0) plan->reference = plan->methods;
    plan->methods++;
    return 0;
}

int compare_plan_create(struct compare_plan *plan, const struct options *o, struct error *e) {
    *plan = (struct compare_plan){.options = o, .seeds = (int)o->seeds, .reference = -1};
    if (o->target_loss > 0 && o->eval_every == 0)
        return error_set(e, "--target-loss is looked for at evaluations; set --eval-every above 0");
    if (!*o->run_dir) return error_set(e, "--run-dir: the folder's name is empty; expected a path");
    if (strlen(o->run_dir) + COMPARE_LONGEST_WORD + 64 > COMPARE_LONGEST_PATH)
        return error_set(e, "--run-dir: the name is too long, %zu characters", strlen(o->run_dir));
    int most = 1;
    for (const char *c = o->methods; *c; c++) most += *c == ',';
    plan->method = memory_alloc_zeroed(sizeof *plan->method * (size_t)most);
    char *words = strdup(o->methods), *rest = words;
    int status = 0;
    while (rest && !status) status = add_method(plan, strsep(&rest, ","), e);
    free(words);
    if (plan->reference < 0) plan->reference = 0;
    return status;
}

void compare_plan_free(struct compare_plan *plan) {
    free(plan->method);
    *plan = (struct compare_plan){0};
}

struct options compare_run_options(const struct compare_plan *plan, int method, int seed,
                                   char path[COMPARE_LONGEST_PATH]) {
    struct options o = plan->method[method].options;
    o.seed += seed;
    snprintf(path, COMPARE_LONGEST_PATH, "%s/%s-seed%lld", plan->options->run_dir,
             plan->method[method].folder, (long long)o.seed);
    o.run_dir = path;
    return o;
}
