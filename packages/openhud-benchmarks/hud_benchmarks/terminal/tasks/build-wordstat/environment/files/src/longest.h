#define LONGEST 64

struct longest {
    char best[LONGEST], word[LONGEST];
    size_t length;
};

void longest_add(struct longest *longest, int letter);
void longest_end(struct longest *longest);
