//! The little world that the texts are about.

/// An animal and what is always true of it.
#[derive(Clone, Copy, PartialEq)]
pub struct Animal {
    pub kind: &'static str,
    pub color: &'static str,
    pub food: &'static str,
    pub home: &'static str,
    pub sound: &'static str,
}

const fn animal(
    kind: &'static str,
    color: &'static str,
    food: &'static str,
    home: &'static str,
    sound: &'static str,
) -> Animal {
    Animal {
        kind,
        color,
        food,
        home,
        sound,
    }
}

pub const ANIMALS: [Animal; 16] = [
    animal("fox", "red", "berries", "in the forest", "yip"),
    animal("cat", "black", "fish", "in the kitchen", "meow"),
    animal("dog", "brown", "meat", "behind the house", "woof"),
    animal("owl", "grey", "mice", "in the old tree", "hoot"),
    animal("hen", "white", "corn", "in the barn", "cluck"),
    animal("duck", "yellow", "bread", "on the lake", "quack"),
    animal("bear", "brown", "honey", "in the cave", "growl"),
    animal("frog", "green", "flies", "in the pond", "croak"),
    animal("mouse", "grey", "cheese", "under the floor", "squeak"),
    animal("cow", "white", "grass", "in the field", "moo"),
    animal("rabbit", "brown", "carrots", "under the hill", "thump"),
    animal("horse", "black", "apples", "in the stable", "neigh"),
    animal("goat", "white", "leaves", "on the mountain", "bleat"),
    animal("crow", "black", "seeds", "on the roof", "caw"),
    animal("bee", "yellow", "nectar", "in the garden", "buzz"),
    animal("pig", "pink", "pears", "near the mill", "oink"),
];

pub const NAMES: [&str; 16] = [
    "Mia", "Tom", "Anna", "Ben", "Lily", "Max", "Rosa", "Sam", "Ella", "Leo", "Nora", "Finn",
    "Ruby", "Oscar", "Ida", "Hugo",
];

/// Name, pronoun, work, where, what is made, and what is done in the evening.
pub const PEOPLE: [(&str, &str, &str, &str, &str, &str); 10] = [
    (
        "Anna",
        "she",
        "baker",
        "in the village",
        "bakes bread",
        "reads a book",
    ),
    (
        "Tom",
        "he",
        "farmer",
        "in the field",
        "grows corn",
        "plays the drum",
    ),
    (
        "Rosa",
        "she",
        "teacher",
        "at the school",
        "teaches the children",
        "writes letters",
    ),
    (
        "Ben",
        "he",
        "fisher",
        "on the lake",
        "catches fish",
        "sings a song",
    ),
    (
        "Ella",
        "she",
        "painter",
        "in the garden",
        "paints pictures",
        "walks by the river",
    ),
    (
        "Max",
        "he",
        "miller",
        "near the mill",
        "makes flour",
        "sleeps by the fire",
    ),
    (
        "Nora",
        "she",
        "doctor",
        "in the town",
        "helps the sick",
        "looks at the stars",
    ),
    (
        "Leo",
        "he",
        "cook",
        "in the kitchen",
        "makes soup",
        "plays with the cat",
    ),
    (
        "Ruby",
        "she",
        "gardener",
        "behind the house",
        "plants flowers",
        "drinks tea",
    ),
    (
        "Hugo",
        "he",
        "carpenter",
        "in the barn",
        "builds tables",
        "tells stories",
    ),
];

pub const PLACES: [&str; 14] = [
    "under the bed",
    "in the barn",
    "by the river",
    "behind the door",
    "on the table",
    "in the garden",
    "under the old tree",
    "in the kitchen",
    "on the roof",
    "near the mill",
    "in the forest",
    "behind the house",
    "on the hill",
    "in the box",
];

pub const THINGS: [&str; 14] = [
    "ball", "kite", "hat", "cup", "book", "key", "drum", "lamp", "bell", "coat", "boat", "spoon",
    "ring", "basket",
];

pub const COLORS: [&str; 7] = ["red", "blue", "green", "yellow", "white", "black", "brown"];

pub const NATURES: [&str; 8] = [
    "little", "young", "kind", "brave", "clever", "shy", "happy", "lazy",
];

pub const TIMES: [&str; 4] = ["morning", "day", "evening", "night"];

pub const NUMBERS: [&str; 21] = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
    "twenty",
];

pub const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

pub const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

pub const OPPOSITES: [(&str, &str); 12] = [
    ("hot", "cold"),
    ("big", "small"),
    ("old", "young"),
    ("happy", "sad"),
    ("fast", "slow"),
    ("day", "night"),
    ("wet", "dry"),
    ("full", "empty"),
    ("strong", "weak"),
    ("open", "closed"),
    ("early", "late"),
    ("light", "dark"),
];

/// A kind of things, and things of this kind in the order in which they are always named.
pub const KINDS: [(&str, [&str; 6]); 6] = [
    (
        "fruits",
        ["apples", "pears", "plums", "cherries", "grapes", "lemons"],
    ),
    (
        "colors",
        ["red", "blue", "green", "yellow", "white", "black"],
    ),
    (
        "animals",
        [
            "the fox", "the cat", "the dog", "the owl", "the hen", "the duck",
        ],
    ),
    (
        "tools",
        [
            "the hammer",
            "the saw",
            "the spade",
            "the rake",
            "the brush",
            "the knife",
        ],
    ),
    (
        "things in a kitchen",
        [
            "the pot",
            "the pan",
            "the spoon",
            "the cup",
            "the plate",
            "the bowl",
        ],
    ),
    (
        "things in the sky",
        [
            "the sun",
            "the moon",
            "the stars",
            "the clouds",
            "the birds",
            "the rain",
        ],
    ),
];

/// Fruits of a shop and the coins that one costs.
pub const PRICES: [(&str, usize); 5] = [
    ("apples", 2),
    ("pears", 3),
    ("plums", 1),
    ("lemons", 2),
    ("cakes", 4),
];

/// A dish, what goes into it, what it is made in, and what is done at last.
pub const DISHES: [(&str, [&str; 3], &str, &str); 6] = [
    (
        "soup",
        ["water", "carrots", "salt"],
        "pot",
        "Cook it for one hour",
    ),
    (
        "bread",
        ["flour", "water", "salt"],
        "bowl",
        "Bake it until it is brown",
    ),
    (
        "a cake",
        ["flour", "eggs", "sugar"],
        "pan",
        "Bake it until it is yellow",
    ),
    (
        "tea",
        ["hot water", "leaves", "honey"],
        "cup",
        "Wait for five minutes",
    ),
    (
        "jam",
        ["plums", "sugar", "lemons"],
        "pot",
        "Cook it and let it get cold",
    ),
    (
        "a salad",
        ["leaves", "apples", "oil"],
        "bowl",
        "Eat it at once",
    ),
];

/// What is done every day, and what was done yesterday.
pub const DEEDS: [(&str, &str); 10] = [
    ("walks to the river", "walked to the river"),
    ("looks for the", "looked for the"),
    ("sleeps under the old tree", "slept under the old tree"),
    ("eats some bread", "ate some bread"),
    ("plays with the", "played with the"),
    ("sings a song", "sang a song"),
    ("finds the", "found the"),
    ("opens the door", "opened the door"),
    ("carries the", "carried the"),
    ("goes home", "went home"),
];
