/* Options: where a value comes from, how it may be written, and what is said about one that is wrong. */
#include "tests/data_files.h"

#include "train/options.h"

static struct options newest[4]; /* the results of the last few parses stay */
static int parses;

static const struct options *parse(enum option_command command, struct error *e, char **words) {
    struct options *o = &newest[parses++ % 4];
    int count = 0;
    bool help;
    e->text[0] = 0;
    while (words[count]) count++;
    int status = options_parse(o, command, count, words, &help, e);
    assert_int_equal(status == 0, e->text[0] == 0);
    return status ? NULL : o;
}

#define parse_words(command, e, ...) parse(command, e, (char *[]){"command", __VA_ARGS__, NULL})

#define accept(...) accept_words((char *[]){"command", __VA_ARGS__, NULL})
static const struct options *accept_words(char **words) {
    struct error e;
    const struct options *o = parse(TRAIN, &e, words);
    if (!o) fail_msg("refused: %s", e.text);
    return o;
}

/* refuse(word in the message, option words...) */
#define refuse(message, ...) refuse_words(TRAIN, message, (char *[]){"command", __VA_ARGS__, NULL})
static void refuse_words(enum option_command command, const char *message, char **words) {
    struct error e;
    if (parse(command, &e, words)) fail_msg("accepted, though '%s' was expected", message);
    assert_message(e, message);
}

static char *option_file(const char *text) {
    const char *path = test_path("options-%d.ini", parses);
    write_file(path, text, strlen(text));
    return (char *)path;
}

static void test_every_source_wins_over_the_weaker_ones(void **state) {
    (void)state;
    char *file = option_file("layers = 6\nmodel = micro\n");
    assert_int_equal(accept("--seed=1")->layers, 4);
    assert_int_equal(accept("--model", "gpt2")->layers, 12);
    setenv("TANDEM_LAYERS", "5", 1);
    assert_int_equal(accept("--model", "gpt2")->layers, 5);
    assert_int_equal(accept("--config", file)->layers, 6);
    assert_int_equal(accept("--config", file, "--layers", "7")->layers, 7);
    assert_int_equal(accept("--layers", "7", "--config", file)->layers, 7);
    assert_int_equal(accept("--layers", "7", "--config", file)->channels,
                     384); /* the preset of the file's model */
    assert_string_equal(accept("--config", file, "--model", "gpt2")->model, "gpt2");
    assert_int_equal(accept("--config", file, "--model", "gpt2")->channels, 768);
    setenv("TANDEM_CONFIG", file, 1);
    assert_int_equal(accept("--seed=1")->layers, 6);
    unsetenv("TANDEM_LAYERS");
    unsetenv("TANDEM_CONFIG");
    assert_int_equal(accept("--layers=3", "--layers=9")->layers, 9);
}

static void test_setting_one_option(void **state) {
    (void)state;
    struct options o = *accept("--lr=5");
    struct error e;
    char value[] = "0.5";
    assert_int_equal(options_set(&o, "learning-rate", value, &e), 0);
    assert_int_equal(options_set(&o, "interval", value, &e), 0);
    value[0] = 'x';
    assert_true(o.lr == 0.5);
    assert_string_equal(o.interval, "0.5"); /* the text was copied */
    assert_int_equal(options_set(&o, "lr", value, &e), -1);
    assert_message(e, "--lr: found 'x.5', expected a number");
    assert_int_equal(options_set(&o, "top-k", "5", &e), -1);
    assert_message(e, "option 'top-k' is not known");
    assert_true(o.lr == 0.5);
}

/* Calls visit for each spelling of each option: with dashes and with underscores, and under every alias. */
struct spelling {
    const char *initial;
    int commands;
    double low, high;
    bool number, whole, is_switch;
};

static void each_spelling(void (*visit)(const char *name, const struct spelling *s)) {
    enum { TEXT_, INTEGER_, REAL_, SWITCH_, CHOICE_ };
    static const struct {
        const char *names, *initial;
        double low, high;
        int type, commands;
    } rows[] = {
#define OPTION(type, field, initial, low, high, values, aliases, commands, help) \
    {#field "|" aliases, initial, low, high, type##_, commands},
#include "train/options.def"
#undef OPTION
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int type = rows[i].type;
        const struct spelling s = {
            rows[i].initial,  rows[i].commands, rows[i].low, rows[i].high, type == INTEGER_ || type == REAL_,
            type == INTEGER_, type == SWITCH_};
        char names[256];
        snprintf(names, sizeof names, "%s", rows[i].names);
        for (char *name = strtok(names, "|"); name; name = strtok(NULL, "|"))
            for (const char *form = "-_"; *form; form++) {
                for (char *c = name; *c; c++)
                    if (*c == '-' || *c == '_') *c = *form;
                visit(name, &s);
            }
    }
}

static void check_spelling(const char *name, const struct spelling *s) {
    struct error e;
    char word[128];
    snprintf(word, sizeof word, "--%s=%s", name, s->initial);
    for (int command = TRAIN; command <= PLAN; command *= 2)
        if (s->commands & command && !parse_words(command, &e, word)) fail_msg("%s: %s", word, e.text);
}

static void test_every_name_and_alias_is_known_to_its_commands_only(void **state) {
    (void)state;
    struct error e;
    each_spelling(check_spelling);
    refuse("option 'top-k' is not known", "--top-k=5");
    refuse("option 'methods' is not known", "--methods=none");
    assert_non_null(parse_words(COMPARE, &e, "--lr=5", "--methods=none"));
    assert_null(parse_words(GENERATE, &e, "--lr=5"));
    assert_message(e, "option 'lr' is not known");
}

/* Refuses an option's word by one of its commands. */
static void refuse_spelling(const struct spelling *s, const char *message, char *word) {
    refuse_words(s->commands & -s->commands, message, (char *[]){"command", word, NULL});
}

static void check_range(const char *name, const struct spelling *s) {
    if (!s->number) return;
    char word[128];
    const double outside[] = {s->low - 1.0, 2.0 * s->high + 1.0};
    for (int i = 0; i < 2; i++) {
        snprintf(word, sizeof word, "--%s=%.17g", name, outside[i]);
        refuse_spelling(s, strchr(word, '=') + 1, word);
    }
    const char *const malformed[] = {"", "x", "1x", "1,5", "nan", "inf", "1e999", "--", "1 2"};
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        snprintf(word, sizeof word, "--%s=%s", name, malformed[i]);
        refuse_spelling(s, s->whole ? "expected a whole number from" : "expected a number from", word);
    }
    snprintf(word, sizeof word, "--%s=%.17g", name, s->low + 0.5);
    if (s->whole) refuse_spelling(s, "expected a whole number from", word);
}

static void test_numbers_outside_their_range_or_malformed_are_refused(void **state) {
    (void)state;
    each_spelling(check_range);
    assert_int_equal(accept("--steps", "1e3")->steps, 1000);
}

static void check_switch(const char *name, const struct spelling *s) {
    if (!s->is_switch) return;
    char word[128];
    snprintf(word, sizeof word, "--%s=maybe", name);
    refuse_spelling(s, "expected on or off", word);
}

static void test_switches(void **state) {
    (void)state;
    assert_true(accept("--recompute")->recompute);
    assert_true(accept("--recompute", "--overlap=off")->recompute);
    assert_false(accept("--overlap", "off", "--steps", "3")->overlap);
    assert_int_equal(accept("--overlap", "off", "--steps", "3")->steps, 3);
    assert_false(accept("--overlap=off")->overlap);
    assert_false(accept("--overlap=no")->overlap);
    assert_false(accept("--overlap=0")->overlap);
    assert_true(accept("--recompute=true")->recompute);
    const struct options *o = accept("--recompute", "word");
    assert_true(o->recompute && o->word_count == 1);
    assert_string_equal(o->words[0], "word");
    o = accept("word", "--overlap", "off", "other");
    assert_true(!o->overlap && o->word_count == 2);
    each_spelling(check_switch);
}

static void test_unknown_names_suggest_the_nearest(void **state) {
    (void)state;
    refuse("did you mean 'steps'", "--stps", "5");
    refuse("'stps'", "--stps=5");
    refuse("did you mean 'batch-size'", "--batchsize=5");
    refuse("did you mean 'n_layer'", "--n_layerr=5");
    refuse("did you mean 'weight-decay'", "--weightdecay=5");
    /* one dash, one letter or more */
    refuse("option 'n' is not known", "-n", "4");
    refuse("option 'np' is not known", "-np", "4");
    refuse("option '--help' takes no value", "--help=5");
    assert_true(accept("-lr", "4")->lr == 4.0);
}

static void test_choices_and_missing_values(void **state) {
    (void)state;
    refuse("did you mean 'cosine'", "--lr-schedule", "cosin");
    refuse("one of cosine|linear|constant|wsd", "--lr-schedule=");
    refuse("--optimizer: found 'adam'", "--optimizer", "adam");
    refuse("option '--lr' needs a value", "--lr");
    refuse("option '--run-dir' needs a value", "--steps", "5", "--run-dir");
    refuse("--lr: found '--steps'", "--lr", "--steps", "5");
}

static void test_environment_mistakes_name_the_variable(void **state) {
    (void)state;
    setenv("TANDEM_BATCH_SIZE", "many", 1);
    refuse("environment variable TANDEM_BATCH_SIZE: --batch-size: found 'many'", "--steps=5");
    refuse("found 'many'", "--batch-size=5"); /* checked even where a stronger source wins */
    unsetenv("TANDEM_BATCH_SIZE");
}

static void test_option_file_mistakes_name_the_first_bad_line(void **state) {
    (void)state;
    char expected[64];
    static const char *const bad[] = {"steps = many", "stps = 5", "no sense", "lr_schedule = cosin"};
    static const char *const message[] = {"--steps: found 'many'", "did you mean 'steps'",
                                          "expected a line `name = value`", "did you mean 'cosine'"};
    for (int first = 0; first < 4; first++)
        for (int second = 0; second < 4; second++) {
            char text[128];
            snprintf(text, sizeof text, "# comment\n\nlr = 1\n%s\nseed = 5\n%s\n", bad[first], bad[second]);
            char *file = option_file(text);
            snprintf(expected, sizeof expected, "line 4: ");
            refuse(expected, "--config", file);
            refuse(message[first], "--config", file);
            refuse(file, "--config", file);
        }
}

static void test_option_files(void **state) {
    (void)state;
    const struct options *o =
        accept("--config", option_file("# all kinds\ndata = some where\nlr=0.5\n\nseed : 9\n"
                                       "n-layer = 2\noverlap = off\noptimizer = sgd"));
    assert_string_equal(o->data, "some where");
    assert_string_equal(o->optimizer, "sgd");
    assert_true(o->lr == 0.5 && o->seed == 9 && o->layers == 2 && !o->overlap);
    char line[600] = "data = ";
    memset(line + 7, 'x', 150);
    assert_int_equal(strlen(accept("--config", option_file(line))->data), 150);
    memset(line + 7, 'x', 500);
    refuse("line 1: the line is longer than", "--config", option_file(line));
    accept("--config", option_file(""));
    refuse("cannot be read", "--config", (char *)test_path("missing"));
    refuse("cannot be read", "--config", test_folder);
}

static void collect(void *context, const char *name, const char *value, bool is_text) {
    char *all = context;
    sprintf(all + strlen(all), is_text ? "%s='%s';" : "%s=%s;", name, value);
}

static void test_visiting_shows_every_value(void **state) {
    (void)state;
    char all[8192] = "";
    options_visit(accept("--lr=0.25", "--overlap=off", "--data=d"), TRAIN, collect, all);
    const char *const expected[] = {"lr=0.25;", "overlap=false;", "data='d';", "seed=1337;", "model='nano';"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) assert_non_null(strstr(all, expected[i]));
    assert_null(strstr(all, "top_k"));
}

static void test_help_names_every_option(void **state) {
    (void)state;
    bool help;
    struct error e;
    char text[16384] = "";
    struct options *o = &newest[parses++ % 4];
    assert_int_equal(options_parse(o, TRAIN, 2, (char *[]){"train", "--help", NULL}, &help, &e), 0);
    assert_true(help);
    FILE *out = fmemopen(text, sizeof text, "w");
    options_print_help(TRAIN, out);
    fclose(out);
    assert_non_null(strstr(text, "--batch-size N"));
    assert_non_null(strstr(text, "cosine|linear|constant|wsd"));
    assert_null(strstr(text, "--top-k"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_source_wins_over_the_weaker_ones),
        cmocka_unit_test(test_every_name_and_alias_is_known_to_its_commands_only),
        cmocka_unit_test(test_setting_one_option),
        cmocka_unit_test(test_numbers_outside_their_range_or_malformed_are_refused),
        cmocka_unit_test(test_switches),
        cmocka_unit_test(test_unknown_names_suggest_the_nearest),
        cmocka_unit_test(test_choices_and_missing_values),
        cmocka_unit_test(test_environment_mistakes_name_the_variable),
        cmocka_unit_test(test_option_file_mistakes_name_the_first_bad_line),
        cmocka_unit_test(test_option_files),
        cmocka_unit_test(test_visiting_shows_every_value),
        cmocka_unit_test(test_help_names_every_option),
    };
    return cmocka_run_group_tests(tests, make_test_folder, remove_test_folder);
}
