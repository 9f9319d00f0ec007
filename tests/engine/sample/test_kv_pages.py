"""Pages of the key-value cache: none is used twice, counts are right, and everything comes back."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hud.engine.sample.pages import Pages
from hud.engine.sample.prefix_cache import PrefixCache

PAGES = 12
TOKENS = st.integers(0, 1)
OPENINGS = st.sampled_from([[], [7] * 16, [7] * 40, [8] * 24])


class Conversations(RuleBasedStateMachine):
    """Sequences come, share, grow, end and are forgotten; each page is what its slot says it is."""

    @staticmethod
    def page_tokens():
        return 8

    def __init__(self):
        super().__init__()
        self.pages = Pages(PAGES)
        self.slots = PrefixCache(self.pages, self.page_tokens())
        self.memory = {}
        """Stands for keys and values, which depend on all tokens so far: (page, place) to those."""
        self.busy = []
        self.ended = []

    def computed(self, slot, ids):
        """Compute the next tokens of a slot."""
        for token in ids:
            slot.tokens.append(token)
            at = divmod(len(slot.tokens) - 1, self.page_tokens())
            self.memory[slot.pages[at[0]], at[1]] = tuple(slot.tokens)

    @rule(opening=OPENINGS, rest=st.lists(TOKENS, min_size=1, max_size=30), ahead=st.integers(0, 9))
    def begin(self, opening, rest, ahead):
        self.place([*opening, *rest], ahead)

    @precondition(lambda self: self.ended)
    @rule(data=st.data(), more=st.lists(TOKENS, max_size=9))
    def go_on(self, data, more):
        """Place what continues, or cuts short, or equals what was there before."""
        before = data.draw(st.sampled_from(self.ended))
        cut = data.draw(st.integers(1, len(before)))
        self.place([*before[:cut], *more], 0)

    def place(self, ids, ahead):
        needed = -(-(len(ids) + ahead) // self.page_tokens())
        placement = self.slots.place(ids, ahead)
        if placement is None:
            assert self.busy or needed > PAGES, "one alone is never refused"
            return
        if placement.copied is not None:
            source, target = placement.copied
            for place in range(self.page_tokens()):
                self.memory[target, place] = self.memory.get((source, place))
        assert placement.cached < len(ids)
        slot = placement.slot
        assert slot.tokens == ids[: placement.cached]
        assert len(slot.pages) == -(-len(ids) // self.page_tokens())
        self.busy.append((slot, ids))

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), share=st.floats(0, 1))
    def compute_a_part_of_a_prompt(self, data, share):
        slot, ids = data.draw(st.sampled_from(self.busy))
        missing = ids[len(slot.tokens) :]
        self.computed(slot, missing[: round(share * len(missing))])

    @precondition(lambda self: self.busy)
    @rule(data=st.data(), token=TOKENS)
    def draw_a_token(self, data, token):
        slot, ids = data.draw(st.sampled_from(self.busy))
        self.computed(slot, ids[len(slot.tokens) :])
        if self.slots.grow(slot):
            self.computed(slot, [token])
            ids.append(token)
        else:
            assert len(self.busy) > 1 or len(slot.pages) == PAGES, "one alone has every page"

    @precondition(lambda self: self.busy)
    @rule(data=st.data())
    def end(self, data):
        one = data.draw(st.sampled_from(self.busy))
        self.busy.remove(one)
        self.ended.append(one[1])
        self.slots.release(one[0])

    @rule()
    def weights_change(self):
        self.slots.forget()
        assert all(slot.stale for slot, _ in self.busy)

    @invariant()
    def every_page_is_counted_once_for_each_slot_that_holds_it(self):
        users = Counter(page for slot in self.slots for page in slot.pages)
        pinned = {page for slot, _ in self.busy for page in slot.pages}
        assert all(self.pages.users[page] == users[page] for page in range(PAGES))
        assert {page for page in range(PAGES) if self.pages.pins[page]} == pinned
        assert len(self.pages.free) == PAGES - len(users)
        assert self.pages.available == PAGES - len(pinned)

    @invariant()
    def every_slot_reads_what_it_wrote_or_shares(self):
        for slot in self.slots:
            for place in range(len(slot.tokens)):
                at = divmod(place, self.page_tokens())
                assert self.memory[slot.pages[at[0]], at[1]] == tuple(slot.tokens[: place + 1])

    def teardown(self):
        for slot, _ in self.busy:
            self.slots.release(slot)
        self.slots.forget()
        assert (len(self.pages.free), self.pages.available) == (PAGES, PAGES)
        assert not list(self.slots)


class WholeConversations(Conversations):
    """The same where a page holds a whole conversation."""

    @staticmethod
    def page_tokens():
        return 200


TestSmallPages = Conversations.TestCase
TestSmallPages.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestWholePages = WholeConversations.TestCase
TestWholePages.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_beginning_is_shared_by_reference_and_what_is_written_to_is_copied():
    pages = Pages(20)
    slots = PrefixCache(pages, 8)
    prompt = list(range(20))
    first = slots.place(prompt).slot
    first.tokens.extend(prompt)
    second = slots.place(prompt)
    assert second.cached == 19
    assert second.slot.pages[:2] == first.pages[:2]
    assert second.copied == (first.pages[2], second.slot.pages[2])
    assert pages.in_use == 4


def test_a_conversations_next_turn_takes_its_pages_over():
    pages = Pages(20)
    slots = PrefixCache(pages, 8)
    turn = list(range(21))
    first = slots.place(turn).slot
    first.tokens.extend(turn)
    slots.release(first)
    second = slots.place([*turn, 1, 2, 3, 4])
    assert (second.cached, second.copied) == (21, None)
    assert second.slot.pages[:3] == first.pages or not first.pages
    assert pages.in_use == 4


def test_what_was_idle_longest_goes_first_page_by_page_from_the_end():
    pages = Pages(6)
    slots = PrefixCache(pages, 8)
    texts = [[number] * 24 for number in range(2)]
    held = [slots.place(text).slot for text in texts]
    for slot, text in zip(held, texts, strict=True):
        slot.tokens.extend(text)
    for slot in reversed(held):  # The second is idle longer.
        slots.release(slot)
    slots.place([9] * 8)
    assert [slots.reusable([*text, 5]) for text in texts] == [24, 16]
