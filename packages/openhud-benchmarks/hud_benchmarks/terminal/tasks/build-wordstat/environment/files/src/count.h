struct counts {
    long lines, words, bytes;
    int in_word, last;
};

void count(struct counts *counts, int letter);
void count_end(struct counts *counts);
