#include <stdio.h>

#include "train/command.h"
#include "train/options.h"
#include "train/schedule.h"

static int show_schedule(const struct options *o, struct error *e) {
    const struct schedule_costs costs = {o->forward_cost, o->backward_cost, o->weight_cost, o->message_cost};
    struct schedule s;
    if (schedule_create(&s, o->schedule, (int)o->pp, (int)o->chunks, (int)o->micro_batches, e)) return -1;
    schedule_print(&s, &costs, stdout);
    schedule_free(&s);
    return 0;
}

int command_plan(int argc, char **argv) {
    struct options o;
    struct error e;
    bool help;
    int status = options_parse(&o, PLAN, argc, argv, &help, &e);
    if (help) {
        printf("usage: tandem plan --show-schedule [OPTIONS]\n\nDraws a pipeline schedule and says what it "
               "costs. "
               "Options, with their defaults:\n\n");
        options_print_help(PLAN, stdout);
        return EXIT_OK;
    }
    if (!status && o.word_count)
        status = error_set(&e, "found '%s', expected options only; --help lists them", o.words[0]);
    if (!status && !o.show_schedule) status = error_set(&e, "nothing to plan; expected --show-schedule");
    if (!status) status = show_schedule(&o, &e);
    if (status) fprintf(stderr, "tandem plan: %s\n", e.text);
    return status ? EXIT_USAGE : EXIT_OK;
}
