#include <stdio.h>
#include <string.h>

#include "data/corpus.h"
#include "train/command.h"
#include "train/options.h"

static void print_usage(FILE *out) {
    fprintf(out, "usage: tandem data build TEXT... --out DIR [OPTIONS]   make token shards from text files\n"
                 "       tandem data inspect PATH...                    print what is in a shard or a folder "
                 "of them\n\n");
    options_print_help(DATA, out);
}

static int complain(const struct error *e) {
    fprintf(stderr, "tandem data: %s\n", e->text);
    return EXIT_USAGE;
}

static int build(const struct options *o, char **texts, int count) {
    struct error e;
    struct corpus_report r;
    const struct corpus_plan plan = {
        .texts = (const char *const *)texts,
        .text_count = count,
        .out = o->out,
        .tokenizer = o->tokenizer,
        .validation = o->validation,
        .shard_tokens = o->shard_tokens,
    };
    if (count == 0)
        return error_set(&e, "no text named; expected tandem data build TEXT... --out DIR"), complain(&e);
    if (!*o->out) return error_set(&e, "no folder named; expected --out DIR"), complain(&e);
    if (corpus_build(&plan, &r, &e)) return complain(&e);
    printf("%s: %lld bytes of text, vocabulary %d (%s): %lld training tokens in %d shard%s, %lld validation "
           "tokens in %d\n",
           o->out, (long long)r.text_bytes, r.vocab, o->tokenizer, (long long)r.train_tokens, r.train_shards,
           r.train_shards == 1 ? "" : "s", (long long)r.validation_tokens, r.validation_shards);
    return EXIT_OK;
}

static int inspect(char **paths, int count) {
    struct error e;
    if (count == 0)
        return error_set(&e, "no shard named; expected tandem data inspect PATH..."), complain(&e);
    for (int i = 0; i < count; i++)
        if (corpus_inspect(paths[i], &e)) return complain(&e);
    return EXIT_OK;
}

int command_data(int argc, char **argv) {
    struct options o;
    struct error e;
    bool help;
    if (options_parse(&o, DATA, argc, argv, &help, &e)) return complain(&e);
    if (help) return print_usage(stdout), EXIT_OK;
    const char *action = o.word_count ? o.words[0] : "";
    if (strcmp(action, "build") == 0) return build(&o, o.words + 1, o.word_count - 1);
    if (strcmp(action, "inspect") == 0) return inspect(o.words + 1, o.word_count - 1);
    error_set(&e, "found '%s', expected build or inspect; --help shows how", action);
    return complain(&e);
}
