"""The words of the simulated user: what it asks about, how it complains, how it is pleased.

Data only. The training questions are every topic under every form; the held-out questions use topics
that occur in no training question, so that no answer to them can have been learned by heart. Complaints
say in ordinary words what is wrong and never name the rule's numbers, as a person would not.
"""

import enum


class Objection(enum.StrEnum):
    """What is wrong with an answer, in the order in which a reader notices it."""

    LIST = "list"
    SEVERAL_LINES = "several_lines"
    TOO_LONG = "too_long"
    CUT_OFF = "cut_off"
    TOO_SHORT = "too_short"


TRAINING_TOPICS: tuple[str, ...] = (
    "apples", "autumn", "balloons", "beaches", "beetles", "bridges", "butter", "candles", "castles", "cheese",
    "clouds", "copper", "deserts", "dogs", "dreams", "ferries", "frogs", "gardens", "glass", "ice cream", "islands",
    "kites", "lakes", "lemons", "libraries", "lightning", "mirrors", "mushrooms", "onions", "oranges", "owls",
    "pancakes", "pianos", "pigeons", "puzzles", "rivers", "salt", "sandwiches", "stars", "swimming", "thunder",
    "tomatoes", "umbrellas", "violins", "waterfalls", "windmills", "wool", "zebras",
)  # fmt: skip

TRAINING_FORMS: tuple[str, ...] = (
    "Tell me something about {}.",
    "What can you tell me about {}?",
    "Why do some people enjoy {}?",
    "Describe {} for me.",
    "I know nothing about {}. Can you help?",
    "What is interesting about {}?",
    "My nephew asked me about {}. What should I say?",
    "Give me a thought on {}.",
)

HELD_OUT_QUESTIONS: tuple[str, ...] = (
    "Tell me something about volcanoes.",
    "What can you tell me about honeybees?",
    "Why do some people enjoy opera?",
    "Describe sourdough for me.",
    "I know nothing about glaciers. Can you help?",
    "What is interesting about spiders?",
    "My nephew asked me about rockets. What should I say?",
    "Give me a thought on loneliness.",
    "Tell me something about cinnamon.",
    "Describe the number zero for me.",
    "What is interesting about postage stamps?",
    "Why do some people enjoy camping?",
)

COMPLAINTS: dict[Objection, tuple[str, ...]] = {
    Objection.LIST: (
        "No, I did not want a list. Please say it in one plain sentence.",
        "That is a list, and I can't use it. Try again without the points.",
        "Please drop the bullet points and just tell me.",
        "Not a list, please. Put it into one sentence.",
        "Wrong format: I asked a simple question and got a list. Do it again.",
        "I don't like these numbered points. One sentence will do.",
    ),
    Objection.SEVERAL_LINES: (
        "Too many lines. Please answer on a single line.",
        "No, don't break it into paragraphs. One sentence, please.",
        "That is spread over several lines, which is no good to me. Try again.",
        "Please don't start new lines. Say it in one go.",
        "This is not what I need: keep it on one line.",
        "I wanted one sentence, not several paragraphs. Again, please.",
    ),
    Objection.TOO_LONG: (
        "That is much too long. Make it shorter, please.",
        "No, too many words. Just one short sentence.",
        "I am not going to read all that. Say it briefly.",
        "Too long, please try again.",
        "You talk too much. Can you say it in one sentence?",
        "That's not what I wanted, it goes on and on. Shorten it.",
        "Please cut it down, this is way too wordy.",
    ),
    Objection.CUT_OFF: (
        "You stopped in the middle. Please give me a complete, short answer.",
        "That is unfinished. Say it again so that it fits.",
        "Your answer was cut off. Try a shorter one.",
        "No, it ends in the middle of a thought. Again, but shorter.",
        "This is broken off, I can't use it. One complete short sentence, please.",
        "It never came to an end. Please finish in one sentence.",
    ),
    Objection.TOO_SHORT: (
        "That is too short to be of any use. Please say a bit more.",
        "No, that is hardly an answer. Give me a whole sentence.",
        "Is that all? Try again with a full sentence.",
        "That doesn't tell me anything. Please answer properly.",
        "Not enough. I would like one complete sentence.",
        "You barely said anything, do it again.",
    ),
}

THANKS: tuple[str, ...] = (
    "Thanks, that is just right.",
    "Perfect, thank you!",
    "Great answer, exactly what I wanted.",
    "Very good, thanks a lot.",
    "Lovely, that helps.",
    "Nice and clear, thank you.",
    "Wonderful, that's what I needed.",
    "That works, thanks!",
)

NEXT_QUESTION: tuple[str, ...] = ("Next question: ", "Another one: ", "Now this: ", "And now: ", "")

GIVING_UP: tuple[str, ...] = (
    "Still not what I asked for. Let's leave it.",
    "No, that's wrong again. I give up on this one.",
    "That is no better. Forget it.",
    "Again not what I wanted, never mind.",
    "This doesn't help me. Let's drop it.",
)

GOODBYES: tuple[str, ...] = ("That is all for now.", "Bye!", "I have to go now.", "See you.", "No more questions.")
