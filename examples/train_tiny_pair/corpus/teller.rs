use rand::rngs::Xoshiro256PlusPlus;
use rand::{RngExt, SeedableRng};

/// Draws what is told next.
pub struct Teller(Xoshiro256PlusPlus);

impl Teller {
    pub fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Any of `0..n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.random_range(0..n)
    }

    /// One of these, the first ones more often than the last.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        let a = self.below(from.len());
        from[a.min(self.below(from.len()))]
    }

    /// `n` different ones of these, in the order drawn.
    pub fn several<T: Copy + PartialEq>(&mut self, from: &[T], n: usize) -> Vec<T> {
        let mut taken = Vec::with_capacity(n);
        while taken.len() < n.min(from.len()) {
            let one = self.pick(from);
            if !taken.contains(&one) {
                taken.push(one);
            }
        }
        taken
    }

    /// One of these that is not `but`.
    pub fn other<T: Copy + PartialEq>(&mut self, from: &[T], but: T) -> T {
        loop {
            let one = self.pick(from);
            if one != but {
                return one;
            }
        }
    }

    /// A name nobody has, of two or three syllables.
    pub fn made_up(&mut self) -> String {
        let mut name = String::new();
        for _ in 0..2 + self.below(2) {
            for letters in ["bdfgklmnprstvz", "aeiou"] {
                let at = self.below(letters.len());
                name.push_str(&letters[at..=at]);
            }
        }
        if self.below(2) == 0 {
            name.push('n');
        }
        capital(&name)
    }
}

/// The text with its first letter capital.
pub fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}

/// The words with "a" or "an" before them.
pub fn a(words: &str) -> String {
    let n = if words.starts_with(['a', 'e', 'i', 'o', 'u']) {
        "n"
    } else {
        ""
    };
    format!("a{n} {words}")
}

/// "x, y and z".
pub fn listed(items: &[&str]) -> String {
    match items {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}
